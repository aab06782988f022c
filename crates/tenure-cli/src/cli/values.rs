//! What is typed as a value, checked: each says what is wrong and how to write it.

use std::time::Duration;

use tenure::{LockName, Reason, Ttl};

pub(super) fn name(text: &str) -> Result<LockName, String> {
    LockName::new(text).map_err(|invalid| invalid.to_string())
}

pub(super) fn not_empty(text: &str) -> Result<String, String> {
    if text.is_empty() {
        Err("it is empty; leave the option out for the default".into())
    } else {
        Ok(text.into())
    }
}

pub(super) fn reason(text: &str) -> Result<Reason, String> {
    Reason::new(text).map_err(|invalid| invalid.to_string())
}

pub(super) fn duration(text: &str) -> Result<Duration, String> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    humantime::parse_duration(text).map_err(|error| format!("{error}; write it like 500ms, 30s, 5m or 1h30m"))
}

pub(super) fn ttl(text: &str) -> Result<Ttl, String> {
    Ttl::new(duration(text)?).map_err(|invalid| invalid.to_string())
}

pub(super) fn keep(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("a record that is not kept is none".into()),
        keep => Ok(keep),
    }
}

const NO_SECONDS: &str = "write seconds as a number, like 10 or 0.5";

pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| NO_SECONDS.to_string())?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) => Ok(duration),
        Err(_) if seconds < 0.0 => Err("a time cannot be negative".into()),
        Err(_) if seconds > 0.0 => {
            Err("that is longer than can be waited for; leave it out to wait for ever".into())
        }
        Err(_) => Err(NO_SECONDS.into()),
    }
}

pub(super) fn parties(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(parties @ 1..=10_000) => Ok(parties),
        _ => Err("give a number from 1 to 10000".into()),
    }
}

pub(super) fn span(text: &str) -> Result<Duration, String> {
    let span = duration(text)?;
    let fits = Duration::from_millis(10) <= span && span <= Duration::from_secs(60);
    if fits { Ok(span) } else { Err("give a time from 10ms to 60s".into()) }
}

pub(super) fn permits(text: &str) -> Result<(u32, u32), String> {
    let parts = text.split_once('/');
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let numbers = parts.and_then(|(n, of)| Some((n.parse().ok()?, of.parse().ok()?)));
    match numbers {
        Some((n, of)) if 0 < n && n <= of => Ok((n, of)),
        Some((n, of)) => Err(format!("{n} of {of} permits can never be had")),
        None if parts.is_some_and(|(n, of)| is_number(n) && is_number(of)) => {
            Err(format!("a lock has at most {} permits", u32::MAX))
        }
        None => Err("write how many of how many, like 1/4".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonsense_is_refused_and_zero_means_not_to_wait() {
        assert_eq!(duration("0"), Ok(Duration::ZERO));
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for bad in ["10", "soon", "-1s", "", "99999999999999999999s"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
        for bad in ["-1", "NaN", "inf", "1e300", "ten"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
        assert!(seconds("-1").unwrap_err().contains("negative"));
        assert!(permits("1/99999999999").unwrap_err().contains("at most 4294967295"));
        for bad in ["0/4", "5/4", "4", "1/", "/4", "1/4/2", "-1/4"] {
            assert!(permits(bad).is_err(), "{bad}");
        }
    }
}
