"""What the job's processes and the launcher share: it imports the standard library and torch alone, by relative imports."""
