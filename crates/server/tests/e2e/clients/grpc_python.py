"""Calls ShouldRateLimit at ADDRESS with the message HEX, COUNT times on one channel; prints each reply as hex."""
import sys

import grpc

address, message, count = sys.argv[1:]
METHOD = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
with grpc.insecure_channel(address) as channel:
    call = channel.unary_unary(METHOD, request_serializer=bytes, response_deserializer=bytes)
    for _ in range(int(count)):
        print(call(bytes.fromhex(message), timeout=60, wait_for_ready=True).hex())
