//! Values kept in Redis that refuse the stale: written only with a token at least as high as the highest seen.
//!
//! A lock cannot stop a write that its paused holder has already sent; the resource can. For values in Redis this is
//! the resource's part: every write carries the token of the lease it was made under, and a write with a lower token
//! than the highest one seen for that resource does nothing. The scripts are small, and the same from any language:
//! [`SET`] and [`DELETE`] are their text. The highest token seen is kept beside the value, in `KEY:fence`, for
//! [`FENCE_DAYS`] days after its last use; after that an older write would be taken again, as no lease lives that long.
//!
//! ```no_run
//! # mod tenure { pub use tenure_redis as redis; }
//! # async fn example(lease: tenure_core::Lease) -> Result<(), Box<dyn std::error::Error>> {
//! use tenure::redis::fence::Fenced;
//!
//! let client = redis::Client::open("redis://127.0.0.1:6379")?;
//! let mut connection = client.get_multiplexed_async_connection().await?;
//! let stock = Fenced::new("stock/1001");
//! if !stock.set(&mut connection, lease.token(), "41").await? {
//!     return Err("somebody else has taken over".into());
//! }
//! # Ok(()) }
//! ```

use redis::aio::ConnectionLike;
use redis::{FromRedisValue, RedisResult, Script, Value};
use tenure_core::FencingToken;

/// `EVAL` it with the keys `KEY` and `KEY:fence` and the arguments token, value: 1 if it was written, 0 if stale; an error,
/// and nothing has changed, if it is called otherwise.
pub const SET: &str = include_str!("scripts/fenced_set.lua");
/// `EVAL` it with the keys `KEY` and `KEY:fence` and the argument token: 1 if it was deleted or absent, 0 if stale; an
/// error, and nothing has changed, if it is called otherwise.
pub const DELETE: &str = include_str!("scripts/fenced_delete.lua");
/// How long the highest token of a resource is remembered after its last use. Longer than any lease can live without
/// renewal by far.
pub const FENCE_DAYS: u32 = 30;

/// A value in Redis that takes writes only from the newest holder.
#[derive(Debug, Clone)]
pub struct Fenced {
    key: String,
    fence: String,
}

impl Fenced {
    /// The value at `key`. Its fence is `KEY:fence`: in a cluster, give the key a hash tag, like `{stock}/1001`.
    pub fn new(key: impl Into<String>) -> Self {
        let key = key.into();
        Self { fence: format!("{key}:fence"), key }
    }

    /// Writes `value`, as it is, unless a higher token was seen; answers whether it was written.
    ///
    /// # Errors
    /// Those of the client library. After one, the value may or may not have been written: writing again is safe.
    pub async fn set(
        &self,
        connection: &mut (impl ConnectionLike + Send),
        token: FencingToken,
        value: impl AsRef<[u8]>,
    ) -> RedisResult<bool> {
        let script = Script::new(SET);
        let mut call = script.key(&self.key);
        call.key(&self.fence).arg(token.get()).arg(value.as_ref());
        call.invoke_async(connection).await
    }

    /// Reads the value, and the highest token seen for it.
    ///
    /// # Errors
    /// Those of the client library.
    pub async fn get<T: FromRedisValue>(
        &self,
        connection: &mut (impl ConnectionLike + Send),
    ) -> RedisResult<(Option<T>, Option<FencingToken>)> {
        let mut read = redis::cmd("MGET");
        read.arg(&self.key).arg(&self.fence);
        let (value, token): (Value, Option<u64>) = read.query_async(connection).await?;
        let value = match value {
            Value::Nil => None,
            value => Some(redis::from_redis_value(value)?),
        };
        Ok((value, token.map(FencingToken::new)))
    }

    /// Deletes the value unless a higher token was seen; answers whether it was not stale.
    ///
    /// # Errors
    /// Those of the client library. After one, the value may or may not be there: deleting again is safe.
    pub async fn delete(
        &self,
        connection: &mut (impl ConnectionLike + Send),
        token: FencingToken,
    ) -> RedisResult<bool> {
        let script = Script::new(DELETE);
        let mut call = script.key(&self.key);
        call.key(&self.fence).arg(token.get());
        call.invoke_async(connection).await
    }
}
