// Throttles through ioredis or iovalkey as they come. Arguments: module, host, port.
const [name, host, port] = process.argv.slice(2);
const Redis = require(name);
const assert = require("assert");

(async () => {
  const client = new Redis({ host, port: Number(port) });
  assert.equal(await client.ping(), "PONG");
  const throttle = () => client.call("CL.THROTTLE", name, 4, 1, 3600);
  assert.deepEqual((await throttle()).slice(0, 4), [0, 5, 4, -1]);
  const pipe = client.pipeline();
  for (let i = 0; i < 5; i++) pipe.call("CL.THROTTLE", name, 4, 1, 3600);
  const replies = (await pipe.exec()).map(([error, reply]) => error || reply[0]);
  assert.deepEqual(replies, [0, 0, 0, 0, 1]);
  await client.quit();
  console.log("throttled");
})().catch((error) => {
  console.error(error);
  process.exit(1);
});
