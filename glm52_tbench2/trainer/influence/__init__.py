"""Which part of a step's update moved which content of the next: `glm52 influence`."""
