"""Tasks and models that real ranks train within seconds, and the reference they are compared with."""
