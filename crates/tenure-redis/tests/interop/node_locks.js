// npm's redlock and redis-semaphore on a shared key. Arguments: port, key, which, how often to raise the counter.
const Redis = require("ioredis");

const [port, key, which, times] = process.argv.slice(2);
const client = new Redis({ port: Number(port), maxRetriesPerRequest: 3 });
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

async function raise() {
  const value = Number((await client.get("counter")) ?? 0);
  await sleep(2);
  await client.set("counter", String(value + 1));
}

async function main() {
  for (let i = 0; i < Number(times); i++) {
    if (which === "redlock") {
      const { default: Redlock } = await import("redlock");
      const redlock = new Redlock([client], { retryCount: 5000, retryDelay: 15, retryJitter: 10 });
      const lock = await redlock.acquire([key], 20000);
      await raise();
      await lock.release();
    } else {
      const { Mutex } = require("redis-semaphore");
      // It puts "mutex:" before the name.
      const mutex = new Mutex(client, key.replace(/^mutex:/, ""), {
        lockTimeout: 20000, acquireTimeout: 60000, retryInterval: 15, refreshInterval: 0,
      });
      await mutex.acquire();
      await raise();
      await mutex.release();
    }
  }
  await client.quit();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
