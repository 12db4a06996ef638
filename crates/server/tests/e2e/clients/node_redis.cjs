// Throttles through node-redis as it comes. Arguments: host, port.
const [host, port] = process.argv.slice(2);
const { createClient } = require("redis");
const assert = require("assert");

(async () => {
  const client = createClient({ socket: { host, port: Number(port) } });
  client.on("error", (error) => {
    console.error(error);
    process.exit(1);
  });
  await client.connect();
  assert.equal(await client.ping(), "PONG");
  const throttle = () => client.sendCommand(["CL.THROTTLE", "node", "4", "1", "3600"]);
  assert.deepEqual((await throttle()).slice(0, 4), [0, 5, 4, -1]);
  const replies = await Promise.all(Array.from({ length: 5 }, throttle));
  assert.deepEqual(replies.map((reply) => reply[0]), [0, 0, 0, 0, 1]);
  await client.close();
  console.log("throttled");
})().catch((error) => {
  console.error(error);
  process.exit(1);
});
