//! SipHash-1-3 with 128 bits, over bytes that are available in one slice.
//!
//! The `siphasher` crate is written for bytes that arrive in pieces and takes half as many instructions again; this
//! hash is a third of a decision. The tests compare the two.

/// The 128-bit hash of `bytes` under `key`.
#[inline]
pub(crate) fn siphash128(key: &[u8; 16], bytes: &[u8]) -> u128 {
    let (k0, k1) = (word(key, 0), word(key, 8));
    let mut v = [
        k0 ^ 0x736f_6d65_7073_6575,
        k1 ^ 0x646f_7261_6e64_6f6d ^ 0xee,
        k0 ^ 0x6c79_6765_6e65_7261,
        k1 ^ 0x7465_6462_7974_6573,
    ];
    let mut rest = bytes;
    while let Some((word, after)) = rest.split_first_chunk::<8>() {
        absorb(&mut v, u64::from_le_bytes(*word));
        rest = after;
    }
    absorb(&mut v, last(rest) | ((bytes.len() as u64) << 56));
    v[2] ^= 0xee;
    let high = squeeze(&mut v);
    v[1] ^= 0xdd;
    let low = squeeze(&mut v);
    (u128::from(high) << 64) | u128::from(low)
}

#[inline]
fn absorb(v: &mut [u64; 4], word: u64) {
    v[3] ^= word;
    round(v);
    v[0] ^= word;
}

#[inline]
fn squeeze(v: &mut [u64; 4]) -> u64 {
    for _ in 0..3 {
        round(v);
    }
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

#[inline]
fn round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[2] = v[2].wrapping_add(v[3]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[1]);
    v[0] = v[0].wrapping_add(v[3]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].rotate_left(32);
}

fn word(bytes: &[u8; 16], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

/// Up to seven bytes, the first in the lowest position.
#[inline]
fn last(rest: &[u8]) -> u64 {
    let shifted = rest.iter().rev();
    shifted.fold(0, |word, byte| (word << 8) | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use siphasher::sip128::SipHasher13;

    use super::*;

    #[test]
    fn every_length_hashes_as_the_crate_does() {
        let bytes: Vec<u8> = (0..=255_u8).map(|i| i.wrapping_mul(151)).collect();
        let key: [u8; 16] = std::array::from_fn(|i| (i * 17) as u8);
        for end in 0..=bytes.len() {
            let known = SipHasher13::new_with_key(&key).hash(&bytes[..end]);
            let known = (u128::from(known.h1) << 64) | u128::from(known.h2);
            assert_eq!(siphash128(&key, &bytes[..end]), known, "{end} bytes");
        }
    }
}
