//! Log lines to standard error: text on a terminal, JSON otherwise.
//!
//! Text from clients is shown through [`SanitizedText`], so that no line break, escape sequence or change of writing
//! direction reaches a log. `RUST_LOG` selects levels. Lines go through [`LogWriter`], so that a log without a reader
//! delays no decision.

use std::fmt::{self, Write};
use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::config::{LogFormat, LogLevel};
use crate::logging::writer::LogWriter;

/// Starts logging. A second call does nothing.
pub(crate) fn init(level: LogLevel, format: LogFormat) {
    let filter = filter(level, std::env::var(EnvFilter::DEFAULT_ENV).ok().as_deref());
    let terminal = std::io::stderr().is_terminal();
    let text = match format {
        LogFormat::Text => true,
        LogFormat::Json => false,
        LogFormat::Auto => terminal,
    };
    let colour = terminal && std::env::var_os("NO_COLOR").is_none();
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| LogWriter)
        // Otherwise it would write its own errors to standard error, and panic where that is closed.
        .log_internal_errors(false)
        .with_ansi(colour)
        .with_target(false);
    // An error means that a subscriber is already set, for example by a test.
    let _ = if text {
        builder.try_init()
    } else {
        builder.json().flatten_event(true).with_span_list(false).with_current_span(false).try_init()
    };
}

/// Libraries of which only errors are logged unless `RUST_LOG` names them. The HTTP/2 library warns about bytes that
/// any client can send, once per frame.
const QUIET_LIBRARIES: [&str; 1] = ["h2"];

/// The log filter: `RUST_LOG` if it is set and valid, otherwise the level.
fn filter(level: LogLevel, environment: Option<&str>) -> EnvFilter {
    let set = environment.filter(|set| !set.is_empty());
    let valid = set.filter(|set| set.parse::<EnvFilter>().is_ok());
    let mut directives = valid.unwrap_or(level.name()).to_owned();
    if !matches!(&*directives, "debug" | "trace") {
        for library in QUIET_LIBRARIES {
            if !directives.contains(library) {
                directives += &format!(",{library}=error");
            }
        }
    }
    EnvFilter::new(directives)
}

/// Text from outside, escaped and cut at [`SanitizedText::MAX_CHARS`].
pub(crate) struct SanitizedText<'a>(pub(crate) &'a str);

impl SanitizedText<'_> {
    /// Enough to recognise a path.
    const MAX_CHARS: usize = 200;
}

impl fmt::Display for SanitizedText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, c) in self.0.chars().enumerate() {
            if i == Self::MAX_CHARS {
                return f.write_str("…");
            }
            if is_unsafe(c) {
                write!(f, "{}", c.escape_unicode())?;
            } else {
                f.write_char(c)?;
            }
        }
        Ok(())
    }
}

/// Control characters, and characters that change the writing direction or are invisible.
pub(crate) fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{061c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{feff}' | '\u{fff9}'..='\u{fffb}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_text_cannot_forge_a_line_or_control_the_terminal() {
        let shown = SanitizedText("a\r\n\x1b[31mINFO\0\u{202e}z\u{9b}\u{200d}").to_string();
        assert_eq!(shown, r"a\u{d}\u{a}\u{1b}[31mINFO\u{0}\u{202e}z\u{9b}\u{200d}");
        assert_eq!(SanitizedText("/größe?x=1").to_string(), "/größe?x=1");
    }

    #[test]
    fn warnings_of_libraries_are_left_out_by_default() {
        let shown = |environment| filter(LogLevel::default(), environment).to_string();
        assert_eq!(shown(None), "h2=error,info");
        assert_eq!(shown(Some("")), "h2=error,info");
        assert_eq!(shown(Some("warn,tidegate=debug")), "tidegate=debug,h2=error,warn");
        assert_eq!(shown(Some("not=a=filter")), "h2=error,info");
        assert_eq!(shown(Some("h2=warn,info")), "h2=warn,info");
        assert_eq!(shown(Some("debug")), "debug");
    }

    #[test]
    fn long_text_is_cut() {
        assert_eq!(SanitizedText(&"ä".repeat(5_000)).to_string().chars().count(), 201);
    }
}
