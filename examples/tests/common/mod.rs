//! Runs the built examples, and speaks HTTP to those that serve.

#![allow(dead_code, reason = "every test program uses its own part of this")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

/// Runs an example to its end; answers what it printed, line by line.
#[track_caller]
pub(crate) fn lines_of(program: &str) -> Vec<String> {
    let output = Command::new(program).env_remove("TENURE_STORE").output().unwrap();
    let (stdout, stderr) =
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}: {stdout}{stderr}", output.status);
    stdout.lines().map(Into::into).collect()
}

/// An example that serves, until this is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    address: String,
}

impl Server {
    /// Starts it on a free port and a store of its own, and waits until it says which port.
    pub(crate) fn start(program: &str) -> Self {
        Self::start_on("memory:", program)
    }

    /// Starts it on a free port and this store.
    pub(crate) fn start_on(store: &str, program: &str) -> Self {
        let mut command = Command::new(program);
        command.arg("127.0.0.1:0").env("TENURE_STORE", store);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on http://").unwrap_or_else(|| panic!("{line:?}"));
        Self { address: address.split('/').next().unwrap().into(), child }
    }

    /// Sends one request; answers the status, the head and the body.
    pub(crate) fn send(&self, head: &str, body: &str) -> (u16, String, String) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let length = body.len();
        write!(
            stream,
            "{head}\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), head.into(), body.into())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}
