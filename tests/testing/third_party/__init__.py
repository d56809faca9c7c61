"""What an outsider writes: a store that is no part of Perdure and uses only what its documentation calls public."""
