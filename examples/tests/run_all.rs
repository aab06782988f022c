//! Every example does what it says.

mod common;

use common::{Server, lines_of};

#[test]
fn hello() {
    let lines = lines_of(env!("CARGO_BIN_EXE_hello"));
    assert_eq!(lines.len(), 1);
    assert!(lines[0].starts_with("hello from hello, under token "), "{lines:?}");
}

#[test]
fn oversold() {
    assert_eq!(
        lines_of(env!("CARGO_BIN_EXE_oversold")),
        ["100 items, 200 buyers", "without the lock: 200 sold, 99 left", "with the lock: 100 sold, 0 left"]
    );
}

#[test]
fn migrations() {
    let lines = lines_of(env!("CARGO_BIN_EXE_migrations"));
    let of = |text: &str| lines.iter().filter(|line| line.contains(text)).collect::<Vec<_>>();
    // Each step once, all by the same service, while the other waits.
    let steps = of("migrated to");
    assert_eq!(steps.len(), 3, "{lines:?}");
    let migrator = steps[0].split(':').next().unwrap();
    assert!(steps.iter().all(|step| step.starts_with(migrator)), "{lines:?}");
    let waited = of("nothing to migrate");
    assert!(waited.len() == 1 && !waited[0].starts_with(migrator), "{lines:?}");
    assert_eq!(of("started on schema version 3").len(), 2, "{lines:?}");
    let place = |line: &String| lines.iter().position(|other| other == line);
    assert!(place(waited[0]) > place(steps[2]), "{lines:?}");
}

#[test]
fn cron_once() {
    let lines = lines_of(env!("CARGO_BIN_EXE_cron_once"));
    let made = lines.iter().filter(|line| line.contains("made the report (42 rows")).count();
    let told = lines.iter().filter(|line| line.contains("made already (42 rows")).count();
    assert_eq!((made, told, lines.len()), (1, 2, 3), "{lines:?}");
}

#[test]
fn leader() {
    let lines = lines_of(env!("CARGO_BIN_EXE_leader"));
    for node in ["node-1", "node-2", "node-3"] {
        let place = |line: String| lines.iter().position(|other| other.starts_with(&line)).expect(&line);
        let (leads, seen) = (place(format!("{node}: I lead")), place(format!("observer: {node} leads")));
        let resigned = place(format!("{node}: I step down"));
        assert!(leads < resigned && seen < resigned, "{lines:?}");
        // Nobody else leads meanwhile.
        let others = lines[leads + 1..resigned].iter().filter(|line| line.contains("I lead"));
        assert_eq!(others.count(), 0, "{lines:?}");
    }
}

#[test]
fn fenced_write() {
    assert_eq!(
        lines_of(env!("CARGO_BIN_EXE_fenced_write")),
        [
            "slow wrote under its token",
            "quick wrote under a higher one",
            "slow was refused",
            "slow lost the lock: it was evicted: it hangs",
            "the document says: second draft, by quick"
        ]
    );
}

fn charge(server: &Server, account: &str, key: &str, cents: u32) -> (u16, String, String) {
    let head = format!(
        "POST /charges HTTP/1.1\r\nauthorization: Bearer key-of-{account}\r\nidempotency-key: {key}\r\n\
         content-type: application/json"
    );
    server.send(&head, &format!("{{\"cents\": {cents}}}"))
}

#[test]
fn idempotent_api() {
    let server = Server::start(env!("CARGO_BIN_EXE_idempotent_api"));
    let (status, head, receipt) = charge(&server, "anna", "7", 1250);
    assert_eq!(status, 201, "{head}{receipt}");
    assert!(receipt.starts_with(r#"{"number":1,"account":"anna","cents":1250,"token":"#), "{receipt}");
    assert!(!head.contains("idempotency-replayed"));
    let (status, head, again) = charge(&server, "anna", "7", 1250);
    assert_eq!((status, again), (201, receipt));
    assert!(head.contains("idempotency-replayed: true"), "{head}");
    // Her key for other cents; his key of the same name; one more of hers; nobody's; none.
    assert_eq!(charge(&server, "anna", "7", 9999).0, 422);
    assert!(charge(&server, "bert", "7", 1250).2.starts_with(r#"{"number":2,"account":"bert""#));
    assert!(charge(&server, "anna", "8", 1250).2.starts_with(r#"{"number":3,"account":"anna""#));
    assert_eq!(charge(&server, "eve", "7", 1250).0, 401);
    assert_eq!(server.send("POST /charges HTTP/1.1\r\nauthorization: Bearer key-of-anna", "").0, 400);
}

/// Two servers behind a load balancer, on one store: the retry reaches the other one, or the same one after a crash.
#[test]
fn idempotent_api_in_two_processes() {
    let directory = tempfile::tempdir().unwrap();
    let store = format!("file:{}", directory.path().join("locks").display());
    let start = || Server::start_on(&store, env!("CARGO_BIN_EXE_idempotent_api"));
    let (one, two) = (start(), start());
    let first = charge(&one, "anna", "7", 1250);
    assert_eq!(first.0, 201);
    for server in [two, one, start()] {
        let (status, head, receipt) = charge(&server, "anna", "7", 1250);
        assert_eq!((status, &receipt), (201, &first.2));
        assert!(head.contains("idempotency-replayed: true"), "{head}");
        assert_eq!(charge(&server, "anna", "7", 1).0, 422);
    }
}
