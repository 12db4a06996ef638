"""Throttles through valkey-glide as it comes. Arguments: host, port."""

import sys

from glide_sync import GlideClient, GlideClientConfiguration, NodeAddress

address = NodeAddress(sys.argv[1], int(sys.argv[2]))
client = GlideClient.create(GlideClientConfiguration([address], request_timeout=60_000))
throttle = lambda: client.custom_command(["CL.THROTTLE", "glide", "0", "1", "3600"])
assert throttle()[:4] == [0, 1, 0, -1]
assert throttle()[0] == 1
client.close()
print("throttled")
