"""Throttles through redis-py or valkey-py as they come. Arguments: module, host, port."""

import importlib
import sys

module = importlib.import_module(sys.argv[1])
client = (module.Redis if hasattr(module, "Redis") else module.Valkey)(
    host=sys.argv[2], port=int(sys.argv[3]), decode_responses=True
)
assert client.ping()
throttle = lambda key: client.execute_command("CL.THROTTLE", key, 4, 1, 3600)
assert throttle("python")[:4] == [0, 5, 4, -1]
pipe = client.pipeline(transaction=False)
for _ in range(5):
    pipe.execute_command("CL.THROTTLE", "python", 4, 1, 3600)
assert [reply[0] for reply in pipe.execute()] == [0, 0, 0, 0, 1]
pipe = client.pipeline()
for _ in range(3):
    pipe.execute_command("CL.THROTTLE", "whole", 1, 1, 3600)
assert [reply[0] for reply in pipe.execute()] == [0, 0, 1]
checked = client.execute_command("TG.CHECK", "user", "ada")
if isinstance(checked, list):
    checked = dict(zip(checked[::2], checked[1::2]))
assert checked["allowed"] == 1 and checked["rule"] == "r", checked
print("throttled")
