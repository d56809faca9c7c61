"""Long runs: kills, lost power, lost answers, races, chaos. ``make help`` lists them; tests run a short form of each."""
