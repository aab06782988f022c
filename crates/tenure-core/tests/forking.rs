//! What a `fork` does to randomness: a child that drew its parent's claim ids would hold its parent's locks.
#![cfg(any(target_os = "linux", target_os = "android"))]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use tenure_core::{Entropy, SystemEntropy};

/// More than a thread keeps in stock.
const DRAWS: usize = 100;

type Draws = [[u8; 16]; DRAWS];

fn draw() -> Draws {
    let mut draws = [[0; 16]; DRAWS];
    for draw in &mut draws {
        SystemEntropy.fill(draw);
    }
    draws
}

/// What a child of this process draws that comes into being by `fork`.
fn draw_in_child(fork: impl FnOnce() -> libc::pid_t) -> Draws {
    let (mut reader, writer) = UnixStream::pair().unwrap();
    match fork() {
        -1 => panic!("cannot fork: {}", std::io::Error::last_os_error()),
        0 => tell_and_die(writer),
        child => {
            drop(writer);
            let mut told = Vec::new();
            reader.read_to_end(&mut told).unwrap();
            // SAFETY: waits for a child of ours, and wants to know nothing about it.
            assert_eq!(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }, child);
            let draws: Vec<[u8; 16]> = told.chunks_exact(16).map(|id| id.try_into().unwrap()).collect();
            draws.try_into().expect("the child told all it drew")
        }
    }
}

/// The child of a threaded process: allocates nothing and takes no locks.
fn tell_and_die(mut writer: UnixStream) -> ! {
    let is_told = writer.write_all(draw().as_flattened()).is_ok();
    // SAFETY: ends the process, without the parent's clean-up.
    unsafe { libc::_exit(i32::from(!is_told)) }
}

fn assert_all_differ(parties: [Draws; 3]) {
    let all: std::collections::HashSet<_> = parties.as_flattened().iter().collect();
    assert_eq!(all.len(), 3 * DRAWS, "a claim id was drawn twice");
}

#[test]
fn a_forked_child_draws_other_ids_than_its_parent() {
    let mut one = [0; 16];
    SystemEntropy.fill(&mut one);
    // SAFETY: the child only draws and tells.
    let fork = || unsafe { libc::fork() };
    assert_all_differ([draw_in_child(fork), draw_in_child(fork), draw()]);
}

/// No `atfork` handler runs for it: container runtimes make their children this way.
#[test]
fn a_cloned_child_draws_other_ids_than_its_parent() {
    let mut one = [0; 16];
    SystemEntropy.fill(&mut one);
    // SAFETY: without CLONE_VM and a stack this is a fork; the child only draws and tells.
    let clone = || unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
    let clone = || libc::pid_t::try_from(clone()).expect("a process id");
    assert_all_differ([draw_in_child(clone), draw_in_child(clone), draw()]);
}
