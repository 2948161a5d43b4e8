if [ ! -f crystal ]; then
  echo missing file crystal
  exit 1
fi
echo dragon > jacket.txt
echo done
