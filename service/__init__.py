"""HTTP and rules: the only part that knows every other one but the workers. `service.app.create_app` is its front door."""
