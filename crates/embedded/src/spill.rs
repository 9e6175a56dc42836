//! The spill: states that do not fit into a slot.

use tollgate_core::State;

/// States by index, with a list of free indexes.
#[derive(Debug, Default)]
pub(crate) struct Spill {
    states: Vec<State>,
    free: Vec<usize>,
}

impl Spill {
    pub(crate) fn insert(&mut self, state: State) -> usize {
        let index = self.free.pop().unwrap_or_else(|| {
            self.states.push(State::Absent);
            self.states.len().saturating_sub(1)
        });
        self.put(index, state);
        index
    }

    /// Takes the state out. Its index stays reserved until it is put back or removed.
    pub(crate) fn take(&mut self, index: usize) -> State {
        self.states.get_mut(index).map(std::mem::take).unwrap_or_default()
    }

    pub(crate) fn put(&mut self, index: usize, state: State) {
        if let Some(place) = self.states.get_mut(index) {
            *place = state;
        }
    }

    pub(crate) fn state(&self, index: usize) -> &State {
        self.states.get(index).unwrap_or(&State::Absent)
    }

    pub(crate) fn remove(&mut self, index: usize) {
        self.put(index, State::Absent);
        self.free.push(index);
    }
}
