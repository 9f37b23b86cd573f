//! Which state a sequence has, by group, with the formula of each size.
//!
//! Growing rows live in blocks, bounded rows in rings of a slot. Everything is addressed by absolute
//! position, so that running a sequence again from an earlier position is the rollback.

/// A ring of every slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RingId(pub usize);

/// A pool of growing rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GroupId(pub usize);

/// What the rows of a ring are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingKind {
    /// Window rows: key and value at once, in the backend's row format.
    Window,
    /// Raw compressor rows: values then gates, f32.
    Raw,
}

/// The last rows of a sequence, one for each position modulo the capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ring {
    /// What the rows are.
    pub kind: RingKind,
    /// Positions that later rows may look back to, the newest included, plus the rollback.
    pub capacity: usize,
    /// Values a row.
    pub width: usize,
}

/// Rows that grow with the sequence: one for each `ratio` tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// Tokens a row.
    pub ratio: usize,
    /// Values a row.
    pub width: usize,
}

/// All state of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateLayout {
    /// Positions a window row is visible for.
    pub window: usize,
    /// Rows that can be taken back.
    pub rollback: usize,
    /// Tokens a block covers; a multiple of every ratio.
    pub block_tokens: usize,
    /// Blocks, block 0 included.
    pub blocks: usize,
    /// Slots, slot 0 included.
    pub slots: usize,
    /// Bounded state.
    pub rings: Vec<Ring>,
    /// Growing state.
    pub groups: Vec<Group>,
}

impl StateLayout {
    /// An empty layout, to which a model adds its rings and groups.
    pub fn new(window: usize, rollback: usize, block_tokens: usize) -> Self {
        Self {
            window,
            rollback,
            block_tokens,
            blocks: 0,
            slots: 0,
            rings: Vec::new(),
            groups: Vec::new(),
        }
    }

    /// Adds a ring of window rows: `window` positions and the rollback.
    pub fn window_ring(&mut self, width: usize) -> RingId {
        self.ring(RingKind::Window, self.window + self.rollback, width)
    }

    /// Adds a ring of raw compressor rows: `tokens` positions and the rollback, values and gates.
    pub fn raw_ring(&mut self, tokens: usize, width: usize) -> RingId {
        self.ring(RingKind::Raw, tokens + self.rollback, 2 * width)
    }

    fn ring(&mut self, kind: RingKind, capacity: usize, width: usize) -> RingId {
        self.rings.push(Ring {
            kind,
            capacity,
            width,
        });
        RingId(self.rings.len() - 1)
    }

    /// Adds a group of growing rows.
    pub fn group(&mut self, ratio: usize, width: usize) -> GroupId {
        self.groups.push(Group { ratio, width });
        GroupId(self.groups.len() - 1)
    }

    /// Bytes of a block when a kept value takes `value_bytes`: Σ `block_tokens / ratio · width · value_bytes`.
    pub fn block_bytes(&self, value_bytes: usize) -> usize {
        self.groups
            .iter()
            .map(|g| self.block_tokens / g.ratio * g.width * value_bytes)
            .sum()
    }

    /// Bytes of a slot: window rows of `value_bytes` a value, raw rows of 4, and a tag of 4 a position.
    pub fn slot_bytes(&self, value_bytes: usize) -> usize {
        let rows: usize = self
            .rings
            .iter()
            .map(|r| {
                r.capacity
                    * r.width
                    * if r.kind == RingKind::Window {
                        value_bytes
                    } else {
                        4
                    }
            })
            .sum();
        rows + (self.window + self.rollback) * 4
    }
}
