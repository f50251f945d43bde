"""Service: HTTP API and rules. It imports all other parts except the workers; begin reading at `service.app`."""
