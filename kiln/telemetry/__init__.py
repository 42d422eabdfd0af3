"""What an image reports to CloudWatch: settings, agent configuration, its problems, its cost."""
