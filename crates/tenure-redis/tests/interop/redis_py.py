# redis-py's own Lock on a shared key. Arguments: port, key, then "count N" (raise a counter N times under the lock) or
# "probe" (answers whether the lock can be taken, and whether a release with another's token is refused).
import sys
import time

import redis
from redis.exceptions import LockNotOwnedError

port, key, task = int(sys.argv[1]), sys.argv[2], sys.argv[3]
client = redis.Redis(port=port)
if task == "count":
    for _ in range(int(sys.argv[4])):
        with client.lock(key, timeout=20, sleep=0.01):
            value = int(client.get("counter") or 0)
            time.sleep(0.002)
            client.set("counter", value + 1)
else:
    lock = client.lock(key, timeout=20)
    taken = lock.acquire(blocking=False)
    if taken:
        lock.release()
    thief = client.lock(key, timeout=20)
    thief.local.token = b"not the holder's"
    try:
        thief.release()
        refused = False
    except LockNotOwnedError:
        refused = True
    print(f"taken={taken} refused={refused}")
