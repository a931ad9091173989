//! Enums whose variants each have one word in JSON, SQL and metrics.

/// Implements `ALL`, `name`, `Display`, `FromStr` and serde for an enum, by one word per variant.
/// The crate that uses it needs `serde`, and also `schemars` if the feature `schema` is on.
#[doc(hidden)]
#[macro_export]
macro_rules! string_enum {
    ($type:ident { $($variant:ident = $word:literal,)+ }) => {
        impl $type {
            /// Every variant, in order of declaration.
            pub const ALL: [$type; [$($word),+].len()] = [$($type::$variant),+];

            /// The word in JSON, SQL and metrics.
            pub const fn name(self) -> &'static str {
                match self {
                    $($type::$variant => $word,)+
                }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }

        impl std::str::FromStr for $type {
            type Err = $crate::Invalid;

            fn from_str(text: &str) -> Result<Self, $crate::Invalid> {
                $crate::fields::one_of(text, &$type::ALL.map(|one| (one.name(), one)))
            }
        }

        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.name())
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let word = String::deserialize(deserializer)?;
                word.parse().map_err(serde::de::Error::custom)
            }
        }

        $crate::words_schema!($type { $($word,)+ });
    };
}

#[cfg(feature = "schema")]
#[doc(hidden)]
#[macro_export]
macro_rules! words_schema {
    ($type:ident { $($word:literal,)+ }) => {
        impl schemars::JsonSchema for $type {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({"type": "string", "enum": [$($word),+]})
            }
        }
    };
}

#[cfg(not(feature = "schema"))]
#[doc(hidden)]
#[macro_export]
macro_rules! words_schema {
    ($($anything:tt)*) => {};
}

pub(crate) use string_enum;
