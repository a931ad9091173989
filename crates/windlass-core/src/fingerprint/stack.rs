//! Stack traces inside error texts: which lines are the message, and which frame is the innermost.
//!
//! A message says what went wrong, the innermost frame where. The frames around it say how the
//! program got there, which differs between failures of one cause, so they do not count.

use super::message::source_position;

/// An error text, taken apart.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Trace {
    /// The lines that are no stack frames.
    pub(super) message: String,
    /// The function and line that raised the error.
    pub(super) innermost: Option<String>,
}

/// How a language orders the frames of a trace.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    /// Java, JavaScript, C#, Go: the frame that raised the error comes first.
    InnermostFirst,
    /// Python: it comes last.
    InnermostLast,
}

pub(super) fn read(text: &str) -> Trace {
    let mut message: Vec<&str> = Vec::new();
    let mut innermost: Option<String> = None;
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let bare = line.trim();
        if is_heading(bare) {
            continue;
        }
        if bare == "stack backtrace:" {
            break; // Rust prints it last, and the message has the position already
        }
        if bare.starts_with("goroutine ") && bare.ends_with(':') {
            innermost = lines.find_map(go_frame).or(innermost);
            break;
        }
        // The root cause is the last one, and its first frame is the innermost of all.
        if bare.starts_with("Caused by: ") {
            innermost = None;
        }
        match frame(bare) {
            Some((Order::InnermostLast, frame)) => {
                innermost = Some(frame);
                // The source line, and the markers under it.
                while lines.next_if(|next| next.starts_with("    ")).is_some() {}
            }
            Some((Order::InnermostFirst, frame)) => {
                innermost.get_or_insert(frame);
            }
            None => message.push(line),
        }
    }
    Trace {
        message: message.join("\n"),
        innermost,
    }
}

/// Lines around frames that say nothing about the cause.
fn is_heading(line: &str) -> bool {
    line.starts_with("Traceback (most recent call last)")
        || line.starts_with("note: run with `RUST_BACKTRACE")
        || (line.starts_with("... ") && line.ends_with(" more"))
}

fn frame(line: &str) -> Option<(Order, String)> {
    if let Some(rest) = line.strip_prefix("File \"") {
        let (path, rest) = rest.split_once("\", line ")?;
        let name = path.rsplit(['/', '\\']).next()?;
        let (number, function) = rest.split_once(", in ").unwrap_or((rest, ""));
        let frame = format!("{name}:{number} {function}");
        return Some((Order::InnermostLast, frame.trim_end().to_owned()));
    }
    let call = line.strip_prefix("at ")?;
    let call = call.strip_prefix("async ").unwrap_or(call);
    // `function (place)`, `function(place)`, `function in place:line 42`, or the place alone.
    let (function, place) = match (call.split_once(" in "), call.rfind('(')) {
        (Some((function, place)), _) if place.contains(":line ") => (function, place),
        (_, Some(open)) => call.split_at(open),
        (_, None) => ("", call),
    };
    let place = place.trim_matches(['(', ')']).replace(":line ", ":");
    let place = source_position(&place).unwrap_or_else(|| without_digits(&place));
    let function = without_digits(function.trim_end());
    let is_frame = !function.is_empty() || place.contains(':');
    is_frame.then(|| {
        let frame = format!("{function} {place}").trim().to_owned();
        (Order::InnermostFirst, frame)
    })
}

/// `mail.go:42` of `\t/app/mail.go:42 +0x1d`. The first frames of a panic are Go's own.
fn go_frame(line: &str) -> Option<String> {
    let place = line.trim().split(' ').next()?;
    if place.contains("/src/runtime/") {
        return None;
    }
    source_position(place).filter(|position| position.contains(".go:"))
}

/// Generated names have numbers that change with every build: `lambda$14`.
fn without_digits(text: &str) -> String {
    text.chars().filter(|c| !c.is_ascii_digit()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn innermost(text: &str) -> Option<String> {
        read(text).innermost
    }

    #[test]
    fn each_language_says_where() {
        let python = "Traceback (most recent call last):\n  File \"/app/run.py\", line 9, in main\n    \
                      send()\n  File \"/app/mail.py\", line 42, in send\n    smtp.connect(host)\n    \
                      ^^^^^^^^^^^^\nOSError: [Errno 111] refused";
        let read_python = read(python);
        assert_eq!(read_python.message, "OSError: [Errno 111] refused");
        assert_eq!(read_python.innermost.unwrap(), "mail.py:42 send");
        let java = "Failed: a.B: x\n\tat a.B.c(B.java:7)\nCaused by: a.D: y\n\tat a.D.lambda$14(D.java:42)\n\t\
                    at a.B.c(B.java:7)\n\t... 12 more";
        let read_java = read(java);
        assert_eq!(read_java.message, "Failed: a.B: x\nCaused by: a.D: y");
        assert_eq!(read_java.innermost.unwrap(), "a.D.lambda$ D.java:42");
        let node =
            "TypeError: x\n    at async send (/app/src/mail.js:17:23)\n    at /app/main.js:1:1";
        assert_eq!(innermost(node).unwrap(), "send mail.js:17");
        assert_eq!(
            innermost("x\n    at /app/main.js:1:1").unwrap(),
            "main.js:1"
        );
        let dotnet = "System.Exception: x\n   at Acme.Mail.Send(String to) in /src/Mail.cs:line 42";
        assert_eq!(
            innermost(dotnet).unwrap(),
            "Acme.Mail.Send(String to) Mail.cs:42"
        );
        let go = "panic: x\n\ngoroutine 17 [running]:\npanic({0x1, 0x2})\n\t/usr/go/src/runtime/panic.go:914 +0x21f\n\
                  main.(*Mailer).Send(0xc0)\n\t/app/mail.go:42 +0x1d";
        let read_go = read(go);
        assert_eq!(read_go.message, "panic: x\n");
        assert_eq!(read_go.innermost.unwrap(), "mail.go:42");
    }

    #[test]
    fn a_message_without_frames_stays_whole() {
        for text in ["at noon it failed", "meet me at home", "two\nlines", ""] {
            let read = read(text);
            assert_eq!((read.message.as_str(), read.innermost), (text, None));
        }
    }
}
