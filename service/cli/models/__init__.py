"""Models that a command or a study file names: by preset, by folder, or by their id on the Hugging Face hub."""
