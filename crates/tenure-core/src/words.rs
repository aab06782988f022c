//! How times are said to people, in errors and by the command line.

use std::time::Duration;

/// `duration` as people say it: in its two largest units, such as `1h 30m`, `1m 5s`, `1.5s` or `250ms`.
pub fn in_words(duration: Duration) -> String {
    let (seconds, millis) = (duration.as_secs(), duration.subsec_millis());
    let two = |large: u64, unit: char, small: u64, smaller: char| match small {
        0 => format!("{large}{unit}"),
        small => format!("{large}{unit} {small}{smaller}"),
    };
    match seconds {
        0 if duration.is_zero() => "0s".into(),
        0 if millis == 0 => "<1ms".into(),
        0 => format!("{millis}ms"),
        1..10 if millis >= 100 => format!("{seconds}.{}s", millis / 100),
        1..60 => format!("{seconds}s"),
        60..3600 => two(seconds / 60, 'm', seconds % 60, 's'),
        3600..86_400 => two(seconds / 3600, 'h', seconds / 60 % 60, 'm'),
        _ => two(seconds / 86_400, 'd', seconds / 3600 % 24, 'h'),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_said_in_two_units_at_most() {
        let cases = [
            (0, "0s"),
            (250, "250ms"),
            (1_000, "1s"),
            (1_040, "1s"),
            (1_540, "1.5s"),
            (9_999, "9.9s"),
            (10_500, "10s"),
            (60_000, "1m"),
            (65_000, "1m 5s"),
            (3_600_000, "1h"),
            (3_700_000, "1h 1m"),
            (90_000_000, "1d 1h"),
        ];
        for (millis, said) in cases {
            assert_eq!(in_words(Duration::from_millis(millis)), said);
        }
        assert_eq!(in_words(Duration::from_micros(3)), "<1ms");
    }
}
