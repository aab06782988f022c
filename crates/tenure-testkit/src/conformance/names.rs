//! Names: a store's keys may look how they like, as long as no two names share one.

use std::collections::BTreeSet;
use std::sync::Arc;

use tenure_core::{Line, Released, Trail};

use crate::scene::{exclusive, granted, inspect, nothing_is_left};
use crate::subject::Subject;

/// Everything that a store's keys, tags, globs, quotes and collations have been seen to trip over.
const AWKWARD: &[&str] = &[
    "orders",
    "Orders",
    "ORDERS",
    "orders ",
    " orders",
    "orders/",
    "/orders",
    "//orders",
    "orders//1",
    "orders/1",
    "order",
    "orders1",
    "orders10", // case, space, slash, prefixes of one another
    "caf\u{e9}",
    "cafe\u{301}",
    "CAF\u{c9}",
    "\u{fb01}",
    "fi",
    "\u{df}",
    "ss",
    "SS",
    "\u{130}",
    "i\u{307}",
    "\u{1f512}",
    "\u{1f510}",
    "a\u{200b}",
    "a\u{feff}", // normal forms, folding, what nobody sees
    "{",
    "}",
    "{}",
    "{a}",
    "{a}b",
    "{a}c",
    "a{b}",
    "a{b}c",
    "{a",
    "a}", // hash tags
    "%",
    "%%",
    "%25",
    "%7B",
    "%7b",
    "%7Ba%7D",
    "a%2Fb",
    "a/b",
    "a%",
    "a%2", // our own encoding
    "a",
    "a:q",
    "a:s",
    "a:f",
    "a:d",
    "a:t",
    "tenure:{a}",
    "a:b",
    "a::b", // keys beside the key
    "*",
    "?",
    "[a]",
    "[ab]",
    "a*",
    "\\",
    "\\*",
    "'",
    "''",
    "\"",
    "`",
    ";",
    "--",
    "$1",
    "#",
    "~",
    ".",
    "..",
    "../a",
    "_",
    "a_b",
    "a-b",
    "a.b",
    "axb",
    "NULL",
    "null",
    "0",
    "00",
    "-0",
    "1e3",
    "1000",
    "0x10",
];

/// Every two names that differ in a byte are two locks.
pub(super) async fn names_are_told_apart_byte_for_byte(subject: Arc<dyn Subject>) {
    let client = subject.open().await;
    let mut names: BTreeSet<String> = AWKWARD.iter().map(|&name| name.to_owned()).collect();
    for length in [32, 63, 64, 127, 128, 200, 254, 255] {
        // Cut to any length below, they would be the same.
        for last in ["x", "y"] {
            names.insert("n".repeat(length) + last);
        }
    }
    names.insert("N".repeat(256));
    names.insert("%".repeat(256));
    names.insert("\u{1f512}".repeat(64));

    let mut held = Vec::new();
    for name in &names {
        let claim = exclusive(name);
        let answer = client.attempt(&claim, Line::Pass).await;
        assert!(
            matches!(answer, Ok(tenure_core::Attempt::Granted(_))),
            "{name:?} is not told apart from another: {answer:?}"
        );
        granted(answer);
        held.push(claim);
    }
    for claim in &held {
        let state = inspect(&*client, claim.name.as_str()).await;
        assert_eq!(state.name, claim.name);
        let holders: Vec<_> = state.holders.iter().map(|holder| holder.fingerprint.clone()).collect();
        assert_eq!(holders, [claim.id.fingerprint()], "{:?}", claim.name);
    }
    for claim in &held {
        assert_eq!(client.release(claim, Trail::Clean).await, Ok(Released::Held), "{:?}", claim.name);
    }
    nothing_is_left(&*subject).await;
}
