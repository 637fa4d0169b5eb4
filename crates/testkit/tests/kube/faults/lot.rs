//! What happens next is drawn by lot.

/// Numbers by lot, the same for the same seed.
pub(super) struct Lot(u64);

impl Lot {
    #[allow(clippy::disallowed_methods, reason = "tests are told by the environment what to draw")]
    pub(super) fn of_environment() -> Self {
        let told = std::env::var("PILOT_FAULT_SEED").ok().and_then(|text| text.parse().ok());
        let now = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let seed = told.unwrap_or_else(|| u64::from(now().subsec_nanos()));
        println!("PILOT_FAULT_SEED={seed}");
        Self(seed)
    }

    /// One of so many: the generator of Steele, Lea and Flood.
    pub(super) fn draw(&mut self, of: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        usize::try_from((mixed ^ (mixed >> 31)) % of as u64).unwrap()
    }
}
