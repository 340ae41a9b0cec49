"""What every room of the package stands on: errors, storage, progress, JSON schemas, facts about the machine."""
