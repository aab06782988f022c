//! `tenure man`: the manual page, all commands in one.

use std::io;

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
    Man::new(command.clone()).render(page)?;
    for command in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        let name = command.get_name().to_uppercase();
        page.extend_from_slice(format!(".SH \"TENURE {name}\"\n").as_bytes());
        let man = Man::new(command.clone());
        man.render_synopsis_section(page)?;
        man.render_description_section(page)?;
        man.render_options_section(page)?;
    }
    Ok(())
}
