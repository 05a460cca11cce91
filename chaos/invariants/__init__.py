"""What has to hold in every run: parameters from the scenario, judgements from what was recorded."""
