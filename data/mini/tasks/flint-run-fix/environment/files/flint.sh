if [ ! -f forest ]; then
  echo missing file forest
  exit 1
fi
echo cobalt > hammer.txt
echo done
