//! JSON Schemas of types that are a single JSON string.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use crate::{
    ActionId, AttemptError, Fingerprint, HookName, JobId, Key, Kind, Payload, QueueName,
    ScheduleId, ScheduleName, Tag, Timestamp, WorkerName,
};

macro_rules! inline_schemas {
    ($($type:ty = $schema:tt;)*) => {$(
        impl JsonSchema for $type {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!($schema)
            }
        }
    )*};
}

inline_schemas! {
    JobId = {"type": "string", "format": "uuid"};
    ScheduleId = {"type": "string", "format": "uuid"};
    ActionId = {"type": "string", "format": "uuid"};
    Fingerprint = {"type": "string", "pattern": "^([0-9a-fA-F]{16}|other)$"};
    Timestamp = {"type": "string", "format": "date-time"};
    Kind = {"type": "string", "pattern": "^[A-Za-z0-9_.:/-]{1,128}$"};
    // The lookahead excludes `.` and `..`, which URL paths cannot contain.
    QueueName = {"type": "string", "pattern": "^(?!\\.{1,2}$)[A-Za-z0-9_.-]{1,64}$"};
    HookName = {"type": "string", "pattern": "^(?!\\.{1,2}$)[A-Za-z0-9_.-]{1,48}$"};
    ScheduleName = {"type": "string", "pattern": "^(?!\\.{1,2}$)[A-Za-z0-9_.:/-]{1,128}$"};
    Key = {"type": "string", "minLength": 1, "maxLength": 256};
    Tag = {"type": "string", "minLength": 1, "maxLength": 64};
    WorkerName = {"type": "string", "minLength": 1, "maxLength": 128};
    Payload = {};
    AttemptError = {
        "type": "object", "required": ["message"],
        "properties": {
            "message": {"type": "string"},
            "causes": {"type": "array", "items": {"type": "string"}},
        },
    };
}
