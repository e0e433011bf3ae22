"""Three tasks in one Flower app, with one hostile client."""
