"""Long runs: kills, lost power, lost answers, races. ``make help`` lists them; tests run short forms of them."""
