//! The command `tenure` as its users meet it: the real program, real processes, a store of its own for each test.
//!
//! `TENURE_FULL=1` runs the long ones at full length.

mod bad_input;
mod benching;
mod claims;
mod counting;
mod doctor;
mod elect;
mod ending;
mod looking;
mod once;
mod running;
mod secrets;
mod sharing;
mod support;
mod telling;
mod terminal;
