"""Where commands run and are verified: sandboxes, and the OpenEnv server and client around them."""
