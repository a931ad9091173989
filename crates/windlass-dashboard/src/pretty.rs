//! JSON with indentation, without any other change.
//!
//! A payload keeps the order of its fields and the spelling of its numbers, so that people see what
//! the handler gets. A parsed value would lose both.

/// Returns JSON with indentation. Text that is not JSON comes back as it is.
pub(crate) fn pretty(json: &str) -> String {
    if serde_json::from_str::<serde::de::IgnoredAny>(json).is_err() {
        return json.to_owned();
    }
    let mut text = String::with_capacity(json.len() * 2);
    let mut depth = 0usize;
    let mut letters = json.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '"' => {
                text.push('"');
                let mut escaped = false;
                for inner in letters.by_ref() {
                    text.push(inner);
                    match inner {
                        _ if escaped => escaped = false,
                        '\\' => escaped = true,
                        '"' => break,
                        _ => {}
                    }
                }
            }
            '{' | '[' => {
                text.push(letter);
                while letters.next_if(char::is_ascii_whitespace).is_some() {}
                if let Some(end) = letters.next_if(|next| matches!(next, '}' | ']')) {
                    text.push(end);
                } else {
                    depth += 1;
                    line(&mut text, depth);
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                line(&mut text, depth);
                text.push(letter);
            }
            ',' => {
                text.push(',');
                line(&mut text, depth);
            }
            ':' => text.push_str(": "),
            _ if letter.is_ascii_whitespace() => {}
            _ => text.push(letter),
        }
    }
    text
}

fn line(text: &mut String, depth: usize) {
    text.push('\n');
    text.push_str(&"  ".repeat(depth));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_and_numbers_stay_as_they_were() {
        let json = r#"{"b": 1.50,"a":[1, 90071992547409931234],"c":{},"d":[ ],"e":"x, {\"y\":1}"}"#;
        let expected = "{\n  \"b\": 1.50,\n  \"a\": [\n    1,\n    90071992547409931234\n  ],\n  \"c\": {},\n  \"d\": [],\n  \"e\": \"x, {\\\"y\\\":1}\"\n}";
        assert_eq!(pretty(json), expected);
        assert_eq!(
            pretty(&pretty(json)),
            expected,
            "it does not change what is pretty"
        );
    }

    #[test]
    fn text_that_is_not_json_comes_back() {
        for text in ["", "{", "plain <b>", "{\"a\":1} x"] {
            assert_eq!(pretty(text), text);
        }
        assert_eq!(pretty("null"), "null");
    }
}
