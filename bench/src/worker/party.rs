//! The contenders in Rust behind one pair of calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{Client, IntoConnectionInfo, Script};
use rslock::LockManager;
use tenure_core::{Guard, Locks};
use tenure_redis::{Redis, RedisConfig};

use crate::contender::Contender;

pub(crate) enum Locker {
    Tenure(Locks),
    /// With the number of acquires that were refused and go on.
    Rslock(LockManager, AtomicU64),
    Plain(MultiplexedConnection, AtomicU64),
    Counted(MultiplexedConnection, AtomicU64, [Script; 2]),
}

/// Takes a number, then the lock; answers with the number, or with nothing if the lock is taken.
const TAKE: &str = "local token = redis.call('INCR', KEYS[2])
return redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) and token";
/// Gives back what is ours.
const GIVE_BACK: &str = "return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('DEL', KEYS[1])";

/// What is given back.
pub(crate) enum Held {
    Tenure(Guard),
    Rslock(rslock::Lock),
    Plain(String),
    Counted(String, u64),
}

impl Locker {
    pub(crate) async fn connect(contender: Contender, url: &str) -> Result<Arc<Self>, String> {
        Ok(Arc::new(match contender {
            Contender::Tenure | Contender::TenureStored => {
                let mut config = RedisConfig::from_url(url).map_err(|error| error.to_string())?;
                config.hand_on = contender == Contender::Tenure;
                Self::Tenure(Locks::new(Redis::connect(config).await.map_err(|error| error.to_string())?))
            }
            Contender::Rslock => {
                let manager = LockManager::new(vec![url]);
                // It connects when it is first used.
                let lock = manager.lock("bench/first", Duration::from_secs(1)).await;
                manager.unlock(&lock.map_err(|error| error.to_string())?).await;
                Self::Rslock(manager, AtomicU64::new(0))
            }
            _ => {
                let info = url.into_connection_info().map_err(|error| error.to_string())?;
                // As tenure sets it: not a difference to be measured.
                let info = info.set_tcp_settings(TcpSettings::default().set_nodelay(true));
                let client = Client::open(info).map_err(|error| error.to_string())?;
                let connection = client.get_multiplexed_async_connection().await;
                let connection = connection.map_err(|error| error.to_string())?;
                if contender == Contender::Counted {
                    Self::Counted(connection, AtomicU64::new(0), [Script::new(TAKE), Script::new(GIVE_BACK)])
                } else {
                    Self::Plain(connection, AtomicU64::new(0))
                }
            }
        }))
    }

    pub(crate) async fn acquire(&self, name: &str, ttl: Duration) -> Result<Held, String> {
        match self {
            Self::Tenure(locks) => {
                let guard = locks.lock(name).ttl(ttl).acquire().await.map_err(|error| error.to_string())?;
                Ok(Held::Tenure(guard))
            }
            Self::Rslock(manager, waiting) => {
                // What `acquire_no_guard` repeats until it succeeds: its first time tells that the lock is not free.
                if let Ok(lock) = manager.lock(name, ttl).await {
                    return Ok(Held::Rslock(lock));
                }
                waiting.fetch_add(1, Ordering::Relaxed);
                let lock = manager.acquire_no_guard(name, ttl).await;
                waiting.fetch_sub(1, Ordering::Relaxed);
                lock.map(Held::Rslock).map_err(|error| error.to_string())
            }
            Self::Plain(connection, serial) => {
                let value = serial.fetch_add(1, Ordering::Relaxed);
                let mut set = redis::cmd("SET");
                set.arg(name).arg(value).arg("NX").arg("PX").arg(ttl.as_millis() as u64);
                let answer: Option<String> =
                    set.query_async(&mut connection.clone()).await.map_err(|error| error.to_string())?;
                answer.map(|_| Held::Plain(name.to_owned())).ok_or_else(|| "busy".to_owned())
            }
            Self::Counted(connection, serial, [take, _]) => {
                let value = serial.fetch_add(1, Ordering::Relaxed);
                let mut call = take.key(name);
                call.key("tokens").arg(value).arg(ttl.as_millis() as u64);
                let token: Option<u64> =
                    call.invoke_async(&mut connection.clone()).await.map_err(|error| error.to_string())?;
                token.map(|_| Held::Counted(name.to_owned(), value)).ok_or_else(|| "busy".to_owned())
            }
        }
    }

    pub(crate) async fn release(&self, held: Held) -> Result<(), String> {
        match (self, held) {
            (_, Held::Tenure(guard)) => guard.release().await.map_err(|error| error.to_string()),
            (Self::Rslock(manager, _), Held::Rslock(lock)) => {
                manager.unlock(&lock).await;
                Ok(())
            }
            (Self::Plain(connection, _), Held::Plain(name)) => {
                let mut delete = redis::cmd("DEL");
                delete.arg(name);
                delete.exec_async(&mut connection.clone()).await.map_err(|error| error.to_string())
            }
            (Self::Counted(connection, _, [_, give_back]), Held::Counted(name, value)) => {
                let mut call = give_back.key(name);
                let freed = call.arg(value).invoke_async(&mut connection.clone()).await;
                freed.map_err(|error| error.to_string())
            }
            _ => Err("held by another contender".into()),
        }
    }

    pub(crate) fn renewed_and_lost(&self) -> (u64, u64) {
        match self {
            Self::Tenure(locks) => (locks.stats().renewed, locks.stats().lost_total()),
            _ => (0, 0),
        }
    }

    /// Acquires that were refused at least once and still wait. Those cut off while they waited may stay counted.
    pub(crate) fn waiting(&self) -> u64 {
        match self {
            Self::Tenure(locks) => locks.stats().waiting,
            Self::Rslock(_, waiting) => waiting.load(Ordering::Relaxed),
            Self::Plain(..) | Self::Counted(..) => 0,
        }
    }

    /// Waits for what is still being cleaned up.
    pub(crate) async fn close(&self) {
        if let Self::Tenure(locks) = self {
            let _ = locks.close(Duration::from_secs(10)).await;
        }
    }
}
