//! Values: a few small settings beside the counters.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Mutex;

use tollgate_core::{Key, MAX_VALUE, StoreError, StoreErrorKind};

use tollgate_core::lock_mutex;

/// The most names with a value. People write settings, not requests.
const MAX_VALUES: usize = 10_000;

/// The values of a store.
#[derive(Debug, Default)]
pub(crate) struct Values(Mutex<ByName>);

type ByName = HashMap<Box<[u8]>, Box<[u8]>>;

impl Values {
    pub(crate) fn read(&self, name: Key<'_>) -> Option<Vec<u8>> {
        lock_mutex(&self.0).get(name.as_bytes()).map(|value| value.to_vec())
    }

    pub(crate) fn compare_and_set(
        &self,
        name: Key<'_>,
        expected: Option<&[u8]>,
        new: &[u8],
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let refused = StoreError::new(StoreErrorKind::Unavailable);
        if new.len() > MAX_VALUE {
            return Err(refused.with_source("the value is longer than 64 KiB"));
        }
        let mut values = lock_mutex(&self.0);
        let full = values.len() >= MAX_VALUES;
        match (values.entry(name.as_bytes().into()), expected) {
            (Entry::Vacant(_), None) if full => {
                Err(refused.with_source("the store keeps 10000 values already"))
            }
            (Entry::Vacant(place), None) => Ok(Some(place.insert(new.into()).to_vec())),
            (Entry::Vacant(_), Some(_)) => Ok(None),
            (Entry::Occupied(mut place), expected) => {
                if expected == Some(place.get()) {
                    place.insert(new.into());
                }
                Ok(Some(place.get().to_vec()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_at_most_ten_thousand_and_none_is_too_long() {
        let values = Values::default();
        let set =
            |name: &str, value: &[u8]| values.compare_and_set(Key::new(name).unwrap(), None, value);
        for i in 0..MAX_VALUES {
            assert!(set(&i.to_string(), b"x").is_ok());
        }

        assert!(set("one more", b"x").is_err());
        assert_eq!(set("7", b"y").unwrap(), Some(b"x".to_vec()), "it has one already");
        let long = vec![0; MAX_VALUE + 1];
        let name = Key::new("7").unwrap();
        assert!(values.compare_and_set(name, Some(b"x"), &long).is_err());
        assert!(values.compare_and_set(name, Some(b"x"), &long[1..]).is_ok());
    }
}
