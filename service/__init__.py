"""Service: HTTP and rules. The only part that imports all others but the workers; begin reading at `service.app`."""
