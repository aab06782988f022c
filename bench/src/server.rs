//! The server that is measured, and what it tells about itself.

use std::collections::BTreeMap;

use redis::{Connection, FromRedisValue};
use tenure_testkit::servers::{Kind, Server};

use crate::contender::Contender;

/// A Redis of our own on a free port, without persistence, and a connection that only looks.
pub(crate) struct Watched {
    server: Server,
    connection: Connection,
}

impl Watched {
    pub(crate) fn start() -> Result<Self, String> {
        // The longest command is asked of the server itself, as the 100th percentile.
        let server = Server::start_apart(Kind::Redis7, &["--latency-tracking-info-percentiles", "50 99 100"]);
        let client = redis::Client::open(server.url()).map_err(|error| error.to_string())?;
        let connection = client.get_connection().map_err(|error| error.to_string())?;
        Ok(Self { server, connection })
    }

    pub(crate) fn url(&self) -> String {
        self.server.url()
    }

    fn ask<T: FromRedisValue>(&mut self, words: &[&str]) -> Result<T, String> {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        command.query(&mut self.connection).map_err(|error| format!("{}: {error}", words.join(" ")))
    }

    /// Forgets keys and counters.
    pub(crate) fn reset(&mut self) -> Result<(), String> {
        self.ask::<()>(&["FLUSHALL"])?;
        self.reset_counters()
    }

    pub(crate) fn reset_counters(&mut self) -> Result<(), String> {
        self.ask::<()>(&["CONFIG", "RESETSTAT"])
    }

    fn info(&mut self, section: &str) -> Result<BTreeMap<String, String>, String> {
        let text: String = self.ask(&["INFO", section])?;
        let fields = text.lines().filter_map(|line| line.split_once(':'));
        Ok(fields.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect())
    }

    fn number(&mut self, section: &str, field: &str) -> Result<f64, String> {
        let info = self.info(section)?;
        let value = info.get(field).and_then(|value| value.parse().ok());
        value.ok_or_else(|| format!("the server does not tell {field}"))
    }

    pub(crate) fn version(&mut self) -> Result<String, String> {
        Ok(self.info("server")?.remove("redis_version").unwrap_or_default())
    }

    pub(crate) fn memory(&mut self) -> Result<f64, String> {
        self.number("memory", "used_memory")
    }

    pub(crate) fn connections(&mut self) -> Result<u64, String> {
        Ok(self.number("clients", "connected_clients")? as u64)
    }

    pub(crate) fn cpu_seconds(&mut self) -> Result<f64, String> {
        let info = self.info("cpu")?;
        let value = |field: &str| info.get(field).and_then(|value| value.parse::<f64>().ok()).unwrap_or(0.0);
        Ok(value("used_cpu_user") + value("used_cpu_sys"))
    }

    pub(crate) fn pid(&mut self) -> Result<u32, String> {
        Ok(self.number("server", "process_id")? as u32)
    }

    /// How many requests a contender has sent since the last reset.
    pub(crate) fn requests(&mut self, contender: Contender) -> Result<u64, String> {
        let info = self.info("commandstats")?;
        let calls = |command: &&str| {
            let stats = info.get(&format!("cmdstat_{command}"))?;
            stats.split(',').find_map(|field| field.strip_prefix("calls="))?.parse::<u64>().ok()
        };
        Ok(contender.sends().iter().filter_map(calls).sum())
    }

    /// The longest script call since the last reset, in ms.
    pub(crate) fn script_call_max_ms(&mut self) -> Result<f64, String> {
        let info = self.info("latencystats")?;
        let stats = info.get("latency_percentiles_usec_evalsha").cloned().unwrap_or_default();
        let longest = stats.split(',').find_map(|field| field.strip_prefix("p100="));
        Ok(longest.and_then(|micros| micros.parse::<f64>().ok()).unwrap_or(0.0) / 1000.0)
    }

    /// Keys that are there though everything was released. Fence keys are meant to stay for a day: one counts only if
    /// it would stay for ever.
    pub(crate) fn keys_left(&mut self) -> Result<u64, String> {
        let (mut cursor, mut left) = ("0".to_owned(), 0);
        loop {
            let (next, keys): (String, Vec<String>) = self.ask(&["SCAN", &cursor, "COUNT", "10000"])?;
            for key in keys {
                let is_fence = key.starts_with("tenure:") && key.ends_with(":f");
                if !is_fence || self.ask::<i64>(&["PTTL", &key])? == -1 {
                    left += 1;
                }
            }
            cursor = next;
            if cursor == "0" {
                return Ok(left);
            }
        }
    }
}
