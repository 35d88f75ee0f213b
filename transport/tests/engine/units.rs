//! Rates, sizes and durations as text.

use roce_transport::units::*;

#[test]
fn all_accepted_forms() {
    for (text, bits) in [
        ("100Gbps", 100_000_000_000),
        ("2.5 Gbps", 2_500_000_000),
        ("10G", 10_000_000_000),
        ("1500k", 1_500_000),
        ("1T", 1_000_000_000_000),
        ("9600bps", 9_600),
        ("+.5M", 500_000),
        ("5.Mbps", 5_000_000),
        ("1e3M", 1_000_000_000),
        ("25E-1 Kbps", 2_500),
        ("0 bps", 0),
    ] {
        assert_eq!(rate(text), Ok(bits), "{text}");
    }
    for (text, bytes) in [
        ("400KB", 400_000),
        ("9MiB", 9 << 20),
        ("64K", 65_536),
        ("1m", 1 << 20),
        ("1G", 1 << 30),
        ("1_000", 1_000),
        ("64 B", 64),
        ("18446744073709551615", u64::MAX),
    ] {
        assert_eq!(size(text), Ok(bytes), "{text}");
    }
    for (text, ps) in [("1us", 1_000_000), ("0.5 µs", 500_000), ("0.5ps", 1), ("2.5ms", 2_500_000_000)] {
        assert_eq!(duration_ps(text), Ok(ps), "{text}");
    }
    for (text, ns) in [("1.5us", 1_500), ("0s", 0), ("1499ps", 1), ("18446744073709551615ns", u64::MAX)] {
        assert_eq!(duration_ns(text), Ok(ns), "{text}");
    }
}

#[test]
fn an_error_names_the_quantity_and_an_example() {
    let message = |error: UnitError| error.to_string();
    for text in ["fast", "10"] {
        let expected = format!(
            "{text:?} is not a rate; write for example 10Gbps; the units are bps, Kbps, Mbps, Gbps and Tbps"
        );
        assert_eq!(message(rate(text).unwrap_err()), expected);
    }
    assert_eq!(
        message(size("1XB").unwrap_err()),
        "\"1XB\" is not a size; write for example 64K, 400KB or 9MiB"
    );
    assert_eq!(message(duration_ns("1").unwrap_err()), "\"1\" is not a time; write for example 50us");
}

#[test]
fn other_texts_are_refused() {
    for text in [
        "",
        "0",
        "10",
        "1e9",
        "Gbps",
        "1 Gb",
        "-1Gbps",
        "1e300Gbps",
        "1e",
        "1e+",
        "..Gbps",
        "1.2.3G",
        "_",
        "_G",
        "1G1",
        "²",
        "1e99999999999",
        "20000000000Gbps",
        "infG",
        "nan",
    ] {
        assert!(rate(text).is_err(), "{text}");
    }
    for text in ["K", "1 kB/s", "18446744073709551616", "99999999999999999999999999999999999999999G"] {
        assert!(size(text).is_err(), "{text}");
    }
    for text in ["5", "5m", "1h", "18446744073709551616ns"] {
        assert!(duration_ns(text).is_err(), "{text}");
    }
}

#[test]
fn a_number_that_is_too_large_is_said_to_be() {
    for text in ["18446744073709551615K", "1e30", "99999999999999999999999999999999999999999999", "1e400000"]
    {
        let error = size(text).unwrap_err().to_string();
        assert!(error.contains("is too large for a size"), "{error}");
    }
    for text in ["K", "1X", "", "1.2.3", "-1"] {
        let error = size(text).unwrap_err().to_string();
        assert!(error.contains("is not a size"), "{error}");
    }
}
