//! Checks of a JSON text in one pass, without building a value.

use std::collections::BTreeSet;
use std::fmt;

use serde::Deserializer;
use serde::de::{self, DeserializeSeed, MapAccess, SeqAccess, Visitor};

/// Rules that a JSON text must follow.
#[derive(Debug, Clone, Copy)]
pub struct JsonRules {
    /// The deepest nesting of lists and objects.
    pub depth_max: usize,
    /// The most names in one object; names must also be unique. `None` checks neither.
    pub names_max: Option<usize>,
    /// Whether texts must not contain NUL characters.
    pub without_nul: bool,
}

impl JsonRules {
    /// Checks that the text is exactly one JSON value and follows these rules.
    pub fn check(self, text: &str) -> Result<(), serde_json::Error> {
        let mut reader = serde_json::Deserializer::from_str(text);
        let walk = Walk {
            rules: self,
            depth: 0,
        };
        walk.deserialize(&mut reader)?;
        reader.end()
    }

    fn check_text<E: de::Error>(self, text: &str) -> Result<(), E> {
        if self.without_nul && text.contains('\0') {
            return Err(E::custom("text must not contain NUL characters"));
        }
        Ok(())
    }
}

#[derive(Clone, Copy)]
struct Walk {
    rules: JsonRules,
    depth: usize,
}

impl Walk {
    fn deeper<E: de::Error>(self) -> Result<Walk, E> {
        let depth_max = self.rules.depth_max;
        if self.depth == depth_max {
            return Err(E::custom(format!(
                "lists and objects are nested deeper than {depth_max} levels"
            )));
        }
        Ok(Walk {
            depth: self.depth + 1,
            ..self
        })
    }
}

impl<'de> DeserializeSeed<'de> for Walk {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<(), E> {
        self.rules.check_text(text)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let inner = self.deeper()?;
        while items.next_element_seed(inner)?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        let inner = self.deeper()?;
        let mut names = BTreeSet::new();
        while let Some(name) = entries.next_key_seed(Name(self.rules))? {
            if let Some((name, names_max)) = name.zip(self.rules.names_max) {
                if names.len() == names_max {
                    let rule = format!("an object has more than {names_max} names");
                    return Err(de::Error::custom(rule));
                }
                if names.contains(&name) {
                    let shown: String = name.chars().take(40).collect();
                    let rule = format!("the name {shown:?} appears twice in one object");
                    return Err(de::Error::custom(rule));
                }
                names.insert(name);
            }
            entries.next_value_seed(inner)?;
        }
        Ok(())
    }
}

/// Checks a name like any other text; returns it only if the rules compare names.
#[derive(Clone, Copy)]
struct Name(JsonRules);

impl<'de> DeserializeSeed<'de> for Name {
    type Value = Option<String>;

    fn deserialize<D: Deserializer<'de>>(
        self,
        deserializer: D,
    ) -> Result<Option<String>, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Name {
    type Value = Option<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Option<String>, E> {
        self.0.check_text(text)?;
        Ok(self.0.names_max.map(|_| text.to_owned()))
    }
}
