"""Write the replacement of a region: try its calls on fakes, then put them into the graph."""
