//! What a block is called: a keyed hash of everything that its rows depend on.
//!
//! `name = XXH3-128(key, name of the block before, extra, token ids)`. The key is secret and drawn at the start, so
//! that nobody outside can make two names meet. If two meet all the same nothing wrong is found: token ids and
//! `extra` are stored and compared, and the block before is known as itself, not by its name. About 0.1 µs a block.
//!
//! `extra` is a SHA-256 digest of what distinguishes equal token ids: the model and its numbers, the salt of the
//! request, and the media whose placeholders the block covers.

#![forbid(unsafe_code)]

use sha2::{Digest, Sha256};
use xxhash_rust::xxh3::xxh3_128_with_seed;

/// Hashes bytes under a key; another one only in tests.
pub type HashFunction = fn(key: u64, bytes: &[u8]) -> u128;

/// What rows depend on beside the request: blocks of one identity are never found under another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Digest of the model and its revision.
    pub model: [u8; 32],
    /// Counts the times that the weights were replaced.
    pub weights_epoch: u64,
    /// Digest of the numeric layout of every group.
    pub layout: [u8; 32],
    /// 0 for D0, 1 for D1, 2 for D2.
    pub determinism: u8,
}

/// Who may share blocks: an identity and the salt of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scope([u8; 32]);

impl Scope {
    /// The salt may be empty. Costs a microsecond; made once a request.
    pub fn new(identity: &Identity, salt: &[u8]) -> Self {
        let mut digest = Sha256::new();
        // All parts but the last have a fixed size.
        digest.update(identity.model);
        digest.update(identity.weights_epoch.to_le_bytes());
        digest.update(identity.layout);
        digest.update([identity.determinism]);
        digest.update(salt);
        Self(digest.finalize().into())
    }
}

/// An image, say, and the placeholders that stand for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Media {
    /// Position of the first placeholder.
    pub start: u32,
    /// How many there are.
    pub len: u32,
    /// Digest of what the model sees there.
    pub content: [u8; 32],
}

/// A name as it is looked up. The name before a first block is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct BlockHash(pub u128);

/// Digest of what distinguishes equal token ids.
pub(super) type Extra = [u8; 32];

/// A block's name, and the part of it that is compared beside the token ids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) hash: BlockHash,
    pub(super) extra: Extra,
}

/// Makes names.
#[derive(Debug)]
pub(super) struct Namer {
    seed: u64,
    function: HashFunction,
    /// The second half of the key, then what changes.
    bytes: Vec<u8>,
}

impl Namer {
    pub(super) fn new(key: u128, function: Option<HashFunction>) -> Self {
        Self {
            seed: key as u64,
            function: function.unwrap_or(|seed, bytes| xxh3_128_with_seed(bytes, seed)),
            bytes: ((key >> 64) as u64).to_le_bytes().to_vec(),
        }
    }

    /// The name of the block that starts at position `start`, behind the block called `before`. `media` is in the
    /// order of positions.
    pub(super) fn name(
        &mut self,
        before: BlockHash,
        scope: &Scope,
        start: u32,
        tokens: &[u32],
        media: &[Media],
    ) -> Name {
        let extra = extra(scope, start, tokens.len() as u32, media);
        self.bytes.truncate(8);
        self.bytes.extend_from_slice(&before.0.to_le_bytes());
        self.bytes.extend_from_slice(&extra);
        self.bytes
            .extend(tokens.iter().flat_map(|t| t.to_le_bytes()));
        let hash = BlockHash((self.function)(self.seed, &self.bytes));
        Name { hash, extra }
    }
}

/// The scope alone where no media overlaps the block.
fn extra(scope: &Scope, start: u32, len: u32, media: &[Media]) -> Extra {
    let end = |m: &Media| m.start.saturating_add(m.len);
    let first = media.partition_point(|m| end(m) <= start);
    let overlapping = media[first..]
        .iter()
        .take_while(|m| m.start < start.saturating_add(len));
    let mut digest = None;
    for m in overlapping {
        let digest = digest.get_or_insert_with(|| Sha256::new().chain_update(scope.0));
        // Where the block is does not matter here: the block before says so.
        digest.update((i64::from(m.start) - i64::from(start)).to_le_bytes());
        digest.update(m.len.to_le_bytes());
        digest.update(m.content);
    }
    digest.map_or(scope.0, |digest| digest.finalize().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDENTITY: Identity = Identity {
        model: [1; 32],
        weights_epoch: 2,
        layout: [3; 32],
        determinism: 0,
    };

    fn image(start: u32, len: u32, content: u8) -> Media {
        Media {
            start,
            len,
            content: [content; 32],
        }
    }

    #[test]
    fn every_part_of_the_identity_makes_another_name() {
        let others = [
            Identity {
                model: [0; 32],
                ..IDENTITY
            },
            Identity {
                weights_epoch: 3,
                ..IDENTITY
            },
            Identity {
                layout: [0; 32],
                ..IDENTITY
            },
            Identity {
                determinism: 1,
                ..IDENTITY
            },
        ];
        let scope = Scope::new(&IDENTITY, b"");
        let mut scopes: Vec<_> = others.iter().map(|i| Scope::new(i, b"")).collect();
        scopes.push(Scope::new(&IDENTITY, b"salt"));
        let mut namer = Namer::new(5, None);
        let first = namer.name(BlockHash(0), &scope, 0, &[1, 2], &[]);
        assert_eq!(namer.name(BlockHash(0), &scope, 0, &[1, 2], &[]), first);
        for other in &scopes {
            let name = namer.name(BlockHash(0), other, 0, &[1, 2], &[]);
            assert!(name.hash != first.hash && name.extra != first.extra);
        }
        for (before, tokens) in [(1, [1, 2]), (0, [1, 3]), (0, [2, 1])] {
            let name = namer.name(BlockHash(before), &scope, 0, &tokens, &[]);
            assert_ne!(name.hash, first.hash);
            assert_eq!(name.extra, first.extra);
        }
        for key in [4, 5 + (1 << 64)] {
            let name = Namer::new(key, None).name(BlockHash(0), &scope, 0, &[1, 2], &[]);
            assert_ne!(name.hash, first.hash);
        }
    }

    #[test]
    fn only_overlapping_media_count() {
        let scope = Scope::new(&IDENTITY, b"");
        let media = [image(2, 3, 7), image(8, 8, 8), image(16, 1, 9)];
        let of = |start, media: &[Media]| extra(&scope, start, 4, media);
        assert_eq!(of(20, &media), scope.0);
        assert_ne!(of(0, &media), scope.0);
        assert_eq!(of(0, &media), of(0, &media[..1]));
        assert_eq!(of(4, &media), of(4, &media[..1]), "the end of the first");
        assert_ne!(of(0, &media), of(4, &media));
        assert_eq!(of(8, &media), of(8, &media[1..2]));
        assert_eq!(of(16, &media), of(16, &media[2..]));
        assert_eq!(of(8, &[image(8, 8, 8)]), of(4, &[image(4, 8, 8)]));
        assert_ne!(of(8, &[image(8, 8, 8)]), of(8, &[image(8, 8, 9)]));
        assert_ne!(of(8, &[image(8, 8, 8)]), of(8, &[image(7, 9, 8)]));
        assert_eq!(of(0, &[image(u32::MAX, u32::MAX, 1)]), scope.0);
    }
}
