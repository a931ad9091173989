use base64::{Engine as _, engine::general_purpose::STANDARD};
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// Returns whether the body was signed with the secret within the last five minutes.
pub fn verify(
    secret: &str,
    (id, timestamp, signatures): (&str, &str, &str),
    body: &[u8],
    now: i64,
) -> bool {
    let Ok(key) = STANDARD.decode(secret.trim_start_matches("whsec_")) else {
        return false;
    };
    let fresh = |sent: i64| (now - sent).abs() <= 300;
    if !timestamp.parse().is_ok_and(fresh) {
        return false;
    }
    let given = signatures
        .split(' ')
        .filter_map(|one| STANDARD.decode(one.strip_prefix("v1,")?).ok());
    given.into_iter().any(|one| {
        let mut mac = Hmac::<Sha256>::new_from_slice(&key).expect("any length will do");
        mac.update(format!("{id}.{timestamp}.").as_bytes());
        mac.update(body);
        mac.verify_slice(&one).is_ok()
    })
}
