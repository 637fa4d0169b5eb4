use std::time::Duration;

use tokio::sync::mpsc;

use super::Command;

/// Where commands come in.
pub(super) struct Inbox {
    commands: mpsc::UnboundedReceiver<Command>,
    /// Counts the time while something waits for silence.
    timer: tokio::runtime::Runtime,
}

/// What came in.
pub(super) enum Incoming {
    Command(Command),
    /// Nothing did for as long as was waited.
    Silence,
    /// Nobody is left to say anything.
    Over,
}

impl Inbox {
    pub(super) fn new(commands: mpsc::UnboundedReceiver<Command>) -> std::io::Result<Self> {
        let timer = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        Ok(Self { commands, timer })
    }

    /// Waits for the next command, without end or for a time.
    pub(super) fn next(&mut self, patience: Option<Duration>) -> Incoming {
        let command = match patience {
            Some(patience) => {
                let commands = &mut self.commands;
                // The timer begins inside of the runtime that counts it.
                match self.timer.block_on(async { tokio::time::timeout(patience, commands.recv()).await }) {
                    Ok(command) => command,
                    Err(_) => return Incoming::Silence,
                }
            }
            None => self.commands.blocking_recv(),
        };
        command.map_or(Incoming::Over, Incoming::Command)
    }

    /// A command that is there already.
    pub(super) fn waiting(&mut self) -> Option<Command> {
        self.commands.try_recv().ok()
    }
}
