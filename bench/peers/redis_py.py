"""redis-py's Lock as a worker of the bench, at its defaults. The lines it talks are told in src/workers.rs.

asyncio, because a thousand waiters are a thousand threads otherwise, and threads cost it more than they bring.
"""

import asyncio
import os
import sys
import time

import redis.asyncio

TTL_S = 30


def now():
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def say(line):
    print(line, flush=True)


async def line():
    return await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)


async def party(client, number, name, until, rows):
    while now() < until:
        rows.append(await turn(client.lock(name, timeout=TTL_S), number))


async def turn(lock, number):
    asked = now()
    await lock.acquire()
    return await give_back(lock, number, asked, now())


async def give_back(lock, number, asked, granted):
    released = now()
    await lock.release()
    return number, asked, granted, released, now()


def say_rows(rows):
    say("\n".join(" ".join(map(str, row)) for row in rows) + ("\n" if rows else "") + "done")


async def loop(client, names, tasks, seconds):
    await line()
    until = now() + int(float(seconds) * 1e9)
    rows = []
    parties = [
        asyncio.ensure_future(
            party(client, i, f"bench/{i}" if names == "own" else "bench/one", until, rows)
        )
        for i in range(int(tasks))
    ]
    # Without contention every party ends by itself; with it, some would still wait.
    await asyncio.wait(parties, timeout=float(seconds) + (1.0 if names == "own" else 0.0))
    for p in parties:
        p.cancel()
    await asyncio.gather(*parties, return_exceptions=True)
    say_rows(rows)
    await line()


async def wait(client, tasks):
    await line()
    held = client.lock("bench/one", timeout=TTL_S)
    await held.acquire()
    waiters = [
        asyncio.ensure_future(client.lock("bench/one", timeout=TTL_S).acquire()) for _ in range(int(tasks))
    ]
    await asyncio.sleep(1.5)
    say("standing")
    await line()
    # A waiter may swallow its cancellation and go on polling: its end is not waited for, the process is.
    say("done")
    os._exit(0)


class Watched(redis.asyncio.lock.Lock):
    """The same lock, but we see when it is refused for the first time."""

    refused = None

    async def do_acquire(self, token):
        is_granted = await super().do_acquire(token)
        if not is_granted and self.refused and not self.refused.done():
            self.refused.set_result(None)
        return is_granted


async def drain(client, parties, first, step, limit):
    parties, first, step, limit = int(parties), float(first), float(step), float(limit)
    holding = None

    async def come(number, refused):
        await asyncio.sleep(first + step * number)
        lock = Watched(client, "bench/one", timeout=TTL_S)
        lock.refused = refused
        return await turn(lock, number)

    await line()
    while (order := (await line()).strip()) in ("hold", "wait"):
        if order == "hold":
            lock, asked = client.lock("bench/one", timeout=TTL_S), now()
            await lock.acquire()
            holding = (lock, parties, asked, now())
            say("held")
            continue
        refused = [asyncio.get_running_loop().create_future() for _ in range(parties)]
        waiting = [asyncio.ensure_future(come(i, refused[i])) for i in range(parties)]
        await asyncio.wait_for(asyncio.gather(*refused), limit)
        say("standing")
        rows = []
        if holding:
            await line()
            rows.append(await give_back(*holding))
            holding = None
        done, _ = await asyncio.wait(waiting, timeout=limit)
        say_rows(rows + [party.result() for party in done])
    say("done")
    # As above: some may still be polling.
    os._exit(0)


async def main():
    url, job, *arguments = sys.argv[1:]
    # A connection for each task: a pool that is too small refuses instead of waiting.
    client = redis.asyncio.from_url(url, max_connections=2000)
    await client.ping()
    say("ready")
    await {"loop": loop, "wait": wait, "drain": drain}[job](client, *arguments)
    await client.aclose()


asyncio.run(main())
