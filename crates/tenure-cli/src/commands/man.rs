//! `tenure man`: the manual page, all commands in one.

use std::io::{self, Write};

use clap::CommandFactory;
use clap_mangen::Man;

use crate::cli::Cli;
use crate::exit_code::ExitCode;
use crate::failure::{Outcome, internal};
use crate::output::print;

pub(crate) fn run() -> Outcome {
    let mut page = Vec::new();
    render(&mut page).map_err(internal("render the manual page"))?;
    print(&String::from_utf8_lossy(&page));
    Ok(ExitCode::Done)
}

fn render(page: &mut Vec<u8>) -> io::Result<()> {
    let mut command = Cli::command();
    command.build();
    let man = Man::new(command.clone());
    man.render_title(page)?;
    man.render_name_section(page)?;
    writeln!(page, ".SH SYNOPSIS")?;
    synopsis(page, &mut command)?;
    man.render_description_section(page)?;
    man.render_options_section(page)?;
    writeln!(page, ".SH EXAMPLES")?;
    examples(page, &command)?;
    for command in command.get_subcommands_mut().filter(|command| command.get_name() != "help") {
        writeln!(page, ".SH \"TENURE {}\"", command.get_name().to_uppercase())?;
        subcommand(page, command)?;
    }
    man.render_version_section(page)
}

/// The sections of the library, which knows only of a page of its own for each command, become parts of one section
/// here.
fn subcommand(page: &mut Vec<u8>, command: &mut clap::Command) -> io::Result<()> {
    synopsis(page, command)?;
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    writeln!(page, ".PP\n{}", escaped(&about))?;
    // Those of every command were told at the beginning.
    let own = command.clone().mut_args(|arg| if arg.is_global_set() { arg.hide(true) } else { arg });
    let mut options = Vec::new();
    Man::new(own).render_options_section(&mut options)?;
    page.write_all(String::from_utf8_lossy(&options).replace(".SH ", ".SS ").as_bytes())?;
    if command.get_after_help().is_some() {
        writeln!(page, ".SS EXAMPLES")?;
        examples(page, command)?;
    }
    Ok(())
}

fn synopsis(page: &mut Vec<u8>, command: &mut clap::Command) -> io::Result<()> {
    let usage = command.render_usage().to_string();
    writeln!(page, ".nf\n{}\n.fi", escaped(usage.trim_start_matches("Usage: ")))
}

/// What stands at the end of the help: examples, line by line, and what is to be said beside them.
fn examples(page: &mut Vec<u8>, command: &clap::Command) -> io::Result<()> {
    let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    for paragraph in text.split("\n\n") {
        match paragraph.strip_prefix("Examples:\n") {
            Some(examples) => writeln!(page, ".nf\n{}\n.fi", escaped(examples))?,
            None => writeln!(page, ".PP\n{}", escaped(paragraph))?,
        }
    }
    Ok(())
}

/// `text` as it is: a hyphen one can copy, and no line that looks like an order to the formatter.
fn escaped(text: &str) -> String {
    let lines = text.lines().map(|line| {
        let line = line.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq");
        if line.starts_with('.') { format!("\\&{line}") } else { line }
    });
    lines.collect::<Vec<_>>().join("\n")
}
